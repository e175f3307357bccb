"""What a forecast rests on beside the network: simple forecasts, a linear path, covariates, intervals, backtests."""
