"""The content of the web pages, as data and as a single HTML file to send."""
