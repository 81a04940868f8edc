"""What goes in and out of the API and the pages: parameters, JSON, event streams, log text."""
