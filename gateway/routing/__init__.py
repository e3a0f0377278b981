"""Model name -> Pool -> Replica: which server answers, lent for as long as it does."""
