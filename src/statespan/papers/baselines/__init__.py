"""The models that the papers compare with: attention, Transformers, Informer, LSTM, and simple forecasts."""
