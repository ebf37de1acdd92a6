"""Statistics of parameter tensors, streamed: count the stored symbols once, derive every figure from the counts.

stream/      a checkpoint's tensors as pieces of bytes, and as blocks of rows
kernels/     bytes to tallies, and the fused deep passes
counting/    the tally, and the figures that follow from it
potential/   what pruning, quantization and another layout would gain, and the words for it
matrix/      spectrum, rank, dead and duplicate rows
packings/    what packed codes stand for
whole/       the figures of modules, kinds and the model; tensors that stand apart
scanning/    who does the work: threads or a cluster, journal and result
comparing/   two checkpoints side by side
"""
