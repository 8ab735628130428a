namespace gradtool {}
