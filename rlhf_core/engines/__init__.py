"""Who trains a model: plain torch or DeepSpeed, behind one interface."""
