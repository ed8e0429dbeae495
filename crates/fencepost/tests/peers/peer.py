"""A lock of another Python package on the same key, driven line by line over stdin and stdout.

usage: peer.py redis|redlock|kazoo PORT[,PORT...] NAME TTL_MS

Commands: `try` answers `held` or `busy`; `wait` answers `held` once it has the lock; `release` answers
`released` or `lost`."""

import sys

package, ports, name, ttl = sys.argv[1], sys.argv[2].split(","), sys.argv[3], int(sys.argv[4])
servers = [{"host": "127.0.0.1", "port": int(port)} for port in ports]
key = "lock:" + name

if package == "redis":
    import redis

    client = redis.Redis(**servers[0])
    lock = client.lock(key, timeout=ttl / 1000, sleep=0.01)

    def attempt():
        return lock.acquire(blocking=False)

    def wait():
        return lock.acquire(blocking=True)

    def release():
        try:
            lock.release()
        except redis.exceptions.LockNotOwnedError:
            return False
        return True

elif package == "redlock":
    import redlock

    manager = redlock.Redlock(servers, retry_count=1, retry_delay=0.01)
    held = None

    def attempt():
        global held
        held = manager.lock(key, ttl)
        return bool(held)

    def wait():
        while not attempt():
            pass
        return True

    def release():
        manager.unlock(held)
        return True

elif package == "kazoo":
    from kazoo.client import KazooClient

    hosts = ",".join("127.0.0.1:" + port for port in ports)
    client = KazooClient(hosts=hosts, timeout=ttl / 1000)
    client.start()
    # The nodes of Curator and of Fencepost count as contenders.
    lock = client.Lock("/fencepost/" + name, "a peer", extra_lock_patterns=["-lock-"])

    def attempt():
        return lock.acquire(blocking=False)

    def wait():
        return lock.acquire(blocking=True)

    def release():
        return lock.release()

else:
    sys.exit(__doc__)

for line in sys.stdin:
    command = line.strip()
    if command == "try":
        print("held" if attempt() else "busy", flush=True)
    elif command == "wait":
        print("held" if wait() else "busy", flush=True)
    elif command == "release":
        print("released" if release() else "lost", flush=True)
    else:
        sys.exit("unknown command " + command)
