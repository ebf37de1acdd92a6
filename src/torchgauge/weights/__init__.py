"""Statistics of parameter tensors, streamed: count the stored symbols once, derive every figure from the counts.

plan ──pieces──▶ reading ──bytes──▶ kernels ──Tally──▶ statistics, pruning, quantization … ──▶ one row per tensor
                    │                                                                          │
                    └──row blocks──▶ matrices, quantization, pruning (deep)                    └──▶ aggregates, outliers
"""
