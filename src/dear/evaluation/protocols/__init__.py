"""The protocols: one file each defines what is trained on, what is tested, and what the results contain."""
