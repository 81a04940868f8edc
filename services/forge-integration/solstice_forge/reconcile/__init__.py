"""What a forge could not tell us, found out and made up for: by its own record of deliveries, or by its heads."""
