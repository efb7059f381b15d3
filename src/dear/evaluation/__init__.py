"""Evaluation: experiments, their runs on one machine or many, and the records that runs leave.

An `Experiment` is a `Protocol` over methods, each with its settings (`MethodSetup`), data sets, shots and
seeds. It lists its runs (`Run`), which `launch` makes: here, in other processes, or on a cluster. `run_one`
makes one: a `ResolvedRun` has all that its results depend on, a `Session` what it shares with others, such
as the model. `run_one` trains a `Trial` by the training loop, and the protocol tests the trial.
"""
