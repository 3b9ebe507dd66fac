"""jaxalign: which personal reward model should you deploy?

Train personal reward models from preference pairs, steer a language model with them in one jitted decode loop, and
measure what each does to the policy and to the text that comes out. Importing this package imports nothing heavy.
"""

__version__ = "0.1.0"
