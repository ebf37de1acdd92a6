"""Energy of real runs: meters, whole runs, attribution to modules and ops, temperature; estimates and carbon.

meters ──▶ window (idle, warm-up, trials: the whole) ──▶ attribution (ops replayed: the parts) ──▶ EnergyFacts
   └──────▶ thermal (beside the trials)
"""
