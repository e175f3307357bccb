"""The models that the papers compare against: attention, Transformers, Informer, LSTM, and simple forecasts."""
