"""The models that the papers compare against: attention, Informer, LSTM, convolutional networks, simple forecasts."""
