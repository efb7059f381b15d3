"""The Attribute World: procedural images with five factors; (seed, index) determines an image."""
