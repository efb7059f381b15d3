"""The role of every attention head: tables, and the attention mask that follows from one."""
