"""torchgauge inside other tools: trainers, loggers, test runners. Each file needs the package it is named after."""
