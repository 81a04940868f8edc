"""The pages for people; complete without JavaScript."""
