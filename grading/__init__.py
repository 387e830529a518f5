"""Homework: starters made from one master per assignment, submissions marked in a sandbox."""
