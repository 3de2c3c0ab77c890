"""The lab: experiments, run in parallel, with statistics and pictures."""
