"""A course as one zip file, from which a room without a network is set up by one command."""
