"""Files from outside, read whole, bounded and typed: the one place where what a stranger wrote comes in."""
