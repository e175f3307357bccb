"""The models that the papers compare against: attention, recurrent and convolutional networks, simple forecasts."""
