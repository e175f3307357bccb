"""The models that the papers compare against: attention, recurrent networks, convolutions, and simple forecasts."""
