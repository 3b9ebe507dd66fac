"""Pure functions from predictions to numbers: accuracy, calibration, agreement, overlap, intervals."""
