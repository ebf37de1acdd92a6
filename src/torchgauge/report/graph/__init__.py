"""The computation graph: modules at their places in the run, the data between them, and their coordinates.

The page lays its graph out in the browser, since every click that opens or folds a module makes another graph; the SVG
file has no browser and needs the coordinates here. Both follow the same steps: layers, order, columns, coordinates.
"""
