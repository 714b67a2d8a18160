"""Looking into a model: attention, the logit lens, the architecture, as arrays and tables without drawing."""
