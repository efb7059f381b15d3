"""An adapted model on a port: the HTTP API, its page, and what keeps them within bounds."""
