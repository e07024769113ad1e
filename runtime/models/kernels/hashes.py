"""Constants that hash the random bits of a draw, for torch's noise and for kernels that draw the same.

Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", splitmix64, as signed integers.
"""

from __future__ import annotations

MULTIPLIER_1 = 0xBF58476D1CE4E5B9 - 2**64
MULTIPLIER_2 = 0x94D049BB133111EB - 2**64
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
POSITION_STEP = 0xD1B54A32D192ED03 - 2**64
BELOW_ONE = 1.0 - 2.0**-53  # the largest number below 1
