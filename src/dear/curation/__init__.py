"""What left-out training images say about a data set: labels that look wrong, images of no known class."""
