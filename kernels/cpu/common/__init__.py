"""What several CPU kernels are made of: compilation, threads, scalar functions, cells out of the pages."""
