"""The call shapes of other lock packages, so that a code base moves by changing an import.

`fencepost.compat.redis_lock.Lock` for `redis.lock.Lock`, `fencepost.compat.redlock.Redlock` for `redlock.Redlock`. Both use
the keys that the other package uses, so old and new processes exclude each other while you roll out.
"""
