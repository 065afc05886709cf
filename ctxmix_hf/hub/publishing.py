class StoreOnHub:
    pass
