"""Side-by-side runs of the package and its peers: `make bench`, see chapters/how-fast.md."""
