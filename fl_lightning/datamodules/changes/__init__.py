"""What is changed in a training set: images, labels, the sizes of classes, what the proxy set takes."""
