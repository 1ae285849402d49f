"""A cluster that is not there: the same trials, answered by a model of how long their steps take.

cluster    what `--simulate nodes=8,gpus=4,gpu=v100` means
model      a step's time and a rank's memory; calibrated on the published figures in references/
gradients  when they appear in the backward pass, and what of their reduction outlasts it
evidence   how far published figures bear that out, and what none judges
learning   an accuracy's way over the epochs
trial_time how long a whole trial takes
infeasible why a trial can't run there
measuring  noise on all that, judged by the code that judges real steps
group      a trial's gang, with the interface of `workers.launch.gang.Group`

Everything but the noise is a pure function. What comes out is marked: its hardware is `simulated:v100`.
"""
