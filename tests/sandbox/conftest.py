def pytest_addoption(parser):
    parser.addoption("--attack-rounds", type=int, default=1, help="times all attacks are run")
