"""The pages in the Airflow UI, and the JSON behind them."""
