"""The interface of Torch Profiling Utils: `fvcorewriter.FVCoreWriter` and `torchinfowriter.TorchinfoWriter`."""
