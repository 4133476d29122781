"""The experiments, and where each one stands.

An experiment is data in a TOML file, and most experiments also need a function that runs them:

    ewe.toml, thesis.toml, ...  all experiments of a document, with its printed figures (papers.py reads the files)
    x_t1.py, e_c3.py, ...       run() of the experiment X-T1 or E-C3, which yields the cells of its table; perhaps
                                also check(), which judges its claim from the finished table
    ewe_tables.py, ...          run() of several experiments of a document
    plain.py                    run() of the experiments that a TOML file describes completely
    catalog.py                  all experiments, by id
"""
