"""The HTML pages for people, which work completely without JavaScript."""
