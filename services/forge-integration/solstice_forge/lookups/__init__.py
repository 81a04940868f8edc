"""What a delivery lacks is asked of its forge before it is planned."""
