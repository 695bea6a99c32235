"""What the routes of this plugin do, resource by resource."""
