"""Files of data sets: downloads, image folders, and the cache of decoded images."""
