"""Example flow files and the small handbook they run on."""
