"""The book engine: it runs chapters, compares their outputs and builds the site."""
