"""What the pages show, as data, and as a single HTML file to send."""
