"""Reading untrusted files: whole, bounded and typed. All such input enters through here."""
