"""Asks the forge for what a delivery lacks, before it is planned."""
