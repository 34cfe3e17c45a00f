"""One module for each page: it reads, decides what the page says first, and hands values to a template."""
